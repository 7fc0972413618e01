"""How many rounds does a schedule save, and what does it cost?"""
