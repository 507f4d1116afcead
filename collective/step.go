package collective

// Step is a training step whose gradients backward makes evenly, and whose hosts average them in
// buckets meanwhile: a bucket travels as soon as it is full and the one before has left.
type Step struct {
	Hosts    int
	Bytes    int     // of all gradients, on each host
	Backward float64 // seconds in which they are made
}

// Bounds of a bucket, in bytes, but for what a step has in all.
const (
	leastBucket = 1 << 20
	mostBucket  = 64 << 20
)

// clearly is how much of a step one size of buckets must spare another one to be preferred:
// predictions are not better than that, and larger buckets are fewer calls.
const clearly = 0.97

// Buckets are the sizes that are worth a look, largest first: the whole step at once if that is no
// more than the largest, and powers of two.
func (s Step) Buckets() (sizes []int) {
	if s.Bytes <= mostBucket {
		sizes = append(sizes, s.Bytes)
	}
	for size := mostBucket; size >= leastBucket; size /= 2 {
		if size < s.Bytes {
			sizes = append(sizes, size)
		}
	}
	return sizes
}

// Step predicts how long a step takes from the begin of backward until all hosts have the mean of
// its last bucket, with buckets of so many bytes that go by a route. The words about a bucket are
// not overlapped with those about another: the head deals with one after the other.
func (m Model) Step(s Step, bucket int, r Route) float64 {
	n := max((s.Bytes+bucket-1)/bucket, 1)
	each := s.Bytes / n
	one := m.Time(r, s.Hosts, each)
	next := m.Fixed + max(m.Time(r, s.Hosts, 2*each)-one, 0) // from a bucket to the one behind it
	// where the network is what all wait for
	busy := s.Backward/float64(n) + float64(n-1)*next
	return max(busy, s.Backward) + one
}

// Bucket returns the size of buckets with which a step should take least. Route says how an
// all-reduce of so many bytes goes, and now is the size until now: it stays unless another one is
// clearly better.
func (m Model) Bucket(s Step, now int, route func(bytes int) Route) int {
	best, least := now, clearly*m.Step(s, now, route(now))
	for _, size := range s.Buckets() {
		if took := m.Step(s, size, route(size)); took < least {
			best, least = size, clearly*took
		}
	}
	return best
}
