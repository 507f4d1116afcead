package megatron

// Unbucket is what ReadDist does with the buffers of a distributed optimizer.
var Unbucket = splitBuckets
