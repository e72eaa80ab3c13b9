"""Forward processes, by which data become noise, and what follows from them alone.

masked        tokens become masks (`masked.py`); which tokens training hides, and how much each of
              them counts (`corruption.py`, `draws.py`)
transitions   Markov chains in T steps: closed forms (`transitions.py`), matrices (`matrices.py`),
              how much noise each step adds (`betas.py`)
rates         Markov chains in continuous time: any rates (`ctmc.py`), closed forms (`graphs.py`)
gaussian      normal noise on vectors (`gaussian.py`)
"""
