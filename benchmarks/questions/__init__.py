"""Tables of a run of ``scripts/demo.sh``: the leaderboard's judgement, harm, forced values, and rules for declining."""
