"""Forward processes, by which data become noise, and what follows from them alone.

masked        tokens become masks (`masked.py`); the laws by which training hides them and weighs
              what it hides (`corruption.py`, `draws.py`)
transitions   Markov chains in T steps: closed forms (`transitions.py`), matrices (`matrices.py`),
              how much noise each step adds (`betas.py`)
rates         Markov chains in continuous time: any rates (`ctmc.py`), closed forms (`graphs.py`)
gaussian      normal noise on vectors (`gaussian.py`)
"""
