"""One rank in NumPy: what `ringar.job.native` opens in the place of a missing native library.

Scripts are written on systems for which there is no library, and run where there is one. So this
package answers the C interface (tf_ops/include/ringar.h) for a job of one rank: the same results
bit for bit, the same errors, statistics and timelines. It starts no thread, and has no GPU.
"""
