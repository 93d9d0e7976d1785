"""The doctor's checks, one function each: ``async (target) -> Finding``.

A check may raise ``NoAnswer``; :mod:`constrained_k2.evaluation.doctor.examination` turns that into a finding.
"""
