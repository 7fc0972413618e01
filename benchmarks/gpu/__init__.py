"""How long does a collective take on GPUs, against NCCL and against a copy?"""
