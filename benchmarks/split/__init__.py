"""What does splitting the layers of a net over ranks cost, and what does it save?"""
