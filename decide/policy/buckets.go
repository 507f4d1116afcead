package policy

import (
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide"
)

// Bounds of a bucket, in bytes, unless all gradients of a step have fewer.
const (
	minBucket = 1 << 20
	maxBucket = 64 << 20
)

// bucketMargin is the part of a step's time that another size of buckets may take at most to be
// preferred: predictions are not better than that, and larger buckets are fewer calls.
const bucketMargin = 0.97

// BucketSizes returns the sizes of buckets worth comparing for so many bytes of gradients, the
// largest first: the whole step at once if it is no longer than the largest bucket, and powers of
// two.
func BucketSizes(bytes int) (sizes []int) {
	if bytes <= maxBucket {
		sizes = append(sizes, bytes)
	}
	for size := maxBucket; size >= minBucket; size /= 2 {
		if size < bytes {
			sizes = append(sizes, size)
		}
	}
	return sizes
}

// DecideBucketSize decides of how many bytes the buckets of a step should be. Route says how an
// all-reduce of so many bytes goes, and now is the size until now, which stays unless another one
// is clearly better.
func DecideBucketSize(m cost.Model, s cost.Step, now int,
	route func(bytes int) collective.Route) decide.Choice[int] {
	return decide.Prefer(now, BucketSizes(s.Bytes), bucketMargin, func(size int) float64 {
		return m.StepSeconds(s, size, route(size))
	})
}
