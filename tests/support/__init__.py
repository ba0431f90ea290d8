"""What tests share: running async bodies with leak checks, real programs in processes, and the contract's rules."""
