"""Measures this node against limits and peers: ``python -m bench [ROW ...] [--quick]``.

Every figure is a ratio taken in one run, the two sides in turns, so that it means the same on a slow machine as on a
fast one. Nothing here is imported by the product.
"""
