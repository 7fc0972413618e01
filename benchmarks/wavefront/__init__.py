"""How fast do stacked recurrent layers train in wavefronts, over ranks and over threads?"""
