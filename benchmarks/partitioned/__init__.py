"""What do layers on cut images send and how long do they take, beside full connections?"""
