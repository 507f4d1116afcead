//go:build !amd64 || purego

package kernel

func weigh(weight []uint64, data []byte) (hi, lo uint64) { return weighGeneric(weight, data) }
