package cost

// RingSeconds returns about what it takes to average so many bytes over a ring of ranks whose
// slowest link has a latency in seconds and a rate in bytes a second, as it is stated and not
// measured: each rank sends the bytes but its own part twice (Patarasuk and Yuan 2009).
func RingSeconds(ranks int, bytes int64, latency, rate float64) float64 {
	if ranks < 2 || bytes == 0 {
		return 0
	}
	hops := float64(2 * (ranks - 1))
	return float64(hops*latency) + float64(hops/float64(ranks)*float64(bytes)/rate)
}
