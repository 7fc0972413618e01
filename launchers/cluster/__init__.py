"""Ranks on the processes of a cluster manager, such as Ray and Spark."""
