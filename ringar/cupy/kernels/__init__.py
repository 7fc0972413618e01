"""CUDA sources, as text. CuPy compiles them at run time for the present GPU."""
