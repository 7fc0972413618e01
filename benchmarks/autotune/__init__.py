"""Is a tuned training ever slower than with the defaults?"""
