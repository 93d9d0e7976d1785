"""What public questions say of a run of ``scripts/demo.sh``: the leaderboard's judgement, and what the mask did."""
