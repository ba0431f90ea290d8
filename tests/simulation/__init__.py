"""The whole system under one seeded virtual clock; see world.py."""
