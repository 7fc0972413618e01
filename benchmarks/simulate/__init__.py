"""How would training scale to more hosts than there are?"""
