"""How long does a collective take, against other libraries and against a memcpy?"""
