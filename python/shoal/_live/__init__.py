"""What changes while a job runs: workers that join, epochs of a loop, and the mesh."""
