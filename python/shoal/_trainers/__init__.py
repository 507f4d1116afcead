"""What the adapters to other people's trainers share."""
