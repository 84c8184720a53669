"""What a query means for time and order, read from the plan that Spark's analyser made of it. No Spark in here.

``tree`` reads the plan, ``monotone`` and ``influence`` follow event time through expressions, ``functions`` and
``determinism`` hold the closed lists, ``walk`` goes through operators, ``classify`` draws the conclusion.
"""
