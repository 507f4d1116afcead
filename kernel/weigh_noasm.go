//go:build !amd64 || purego

package kernel

// weigh returns Σ weight[i] · word i of data: Weigh, for this build has no SIMD code.
func weigh(weight []uint64, data []byte) (hi, lo uint64) { return weighGeneric(weight, data) }
