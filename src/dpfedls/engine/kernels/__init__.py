"""Triton kernels for many clients at once on a GPU; tests compare each with plain torch.

Imported only where tensors are on a GPU: Triton comes with torch's CUDA builds.
"""
