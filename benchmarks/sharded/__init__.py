"""How fast do modules train that lie on ranks of their own?"""
