"""Derives what a query means for time and order, from the plan that Spark's analyser made. Needs no Spark.

``tree`` reads the plan, ``monotone`` and ``influence`` follow event time through expressions, ``functions`` and
``determinism`` hold the closed lists, ``walk`` goes through operators, ``classify`` draws the conclusion.
"""
