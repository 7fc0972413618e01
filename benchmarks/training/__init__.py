"""What does communication add to training, and which settings train fastest?"""
