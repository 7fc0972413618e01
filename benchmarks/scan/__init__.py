"""Where does a scan make the backward pass of a recurrent net faster?"""
