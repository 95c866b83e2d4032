"""Triton kernels for many clients at once on a GPU; each has a plain twin that tests hold it to.

Imported only where tensors are on a GPU: Triton comes with torch's CUDA builds.
"""
