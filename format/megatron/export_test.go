package megatron

// This file opens part of the package to tests in another package.

// Unbucket splits the buffers of a distributed optimizer in a checkpoint, as ReadDist does.
var Unbucket = splitBuckets
