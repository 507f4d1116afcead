package cost

// RingSeconds returns about what it takes to average so many bytes over a ring of ranks, whose
// slowest link takes a number of seconds for a message of so many bytes, as it is stated and not
// measured: each rank sends the bytes but its own part twice (Patarasuk and Yuan 2009).
func RingSeconds(ranks int, bytes int64, link func(bytes float64) float64) float64 {
	if ranks < 2 || bytes == 0 {
		return 0
	}
	return float64(2*(ranks-1)) * link(float64(bytes)/float64(ranks))
}
