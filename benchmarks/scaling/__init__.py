"""How far from ideal do the ranks of a job train?"""
