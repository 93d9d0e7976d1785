"""The questions: one function each, ``async (target) -> Finding``.

A function raises ``NotServed`` where the server does not show what is asked, ``Refused`` and ``Unusable`` where it did
not serve a request that is right; what is made of these stands in :mod:`constrained_k2.evaluation.doctor.examination`.
"""
