"""The numerics behind the accountants: no promise is made here, only numbers."""
