"""Forward processes, which turn data into noise, and the equations that follow from them.

masked        tokens become masks (`masked.py`); which tokens training hides, and how much each of
              them counts (`corruption.py`, `draws.py`)
transitions   Markov chains in T steps: closed forms (`transitions.py`), matrices (`matrices.py`),
              how much noise each step adds (`betas.py`)
rates         Markov chains in continuous time: any rates (`ctmc.py`), closed forms (`graphs.py`)
gaussian      Gaussian noise on vectors (`gaussian.py`)
"""
