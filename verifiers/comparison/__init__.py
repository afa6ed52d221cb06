"""Comparison of saved runs: is one better, by how much, and how many rollouts would tell? Behind `vf-compare` and
`vf.compare`.

Reading order:

    paired       tests and intervals for paired differences; numpy only
    variance     the two levels of the variance, sample sizes, detectable effects
    candidates   several candidates at once: Holm, simultaneous intervals, rank sets
    runs         the numbers of saved runs, the pairing of examples, the guard of comparability
    compare      the comparison of runs: `compare`, `Report`
    gate         a policy file → PASS, FAIL or INCONCLUSIVE
    pairwise     Bradley-Terry strengths from pairwise verdicts
    agreement    agreement of judges: kappa, alpha, corrected rates
"""
