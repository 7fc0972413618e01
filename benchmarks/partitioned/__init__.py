"""What do layers on images that are cut over ranks send and take, beside full connections?"""
