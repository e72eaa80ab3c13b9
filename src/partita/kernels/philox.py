"""The constants of Philox-4x32-10 (Salmon et al., 2011), for the reference and the kernel."""

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
