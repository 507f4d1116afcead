package s3

import (
	"context"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
)

// The library pauses after a request that fails, even where it does not try again.
func init() { minio.DefaultRetryUnit = time.Nanosecond }

// Unpaced has tries follow each other at once, appends the pauses to pauses (nil = nowhere) on the
// goroutine that makes the request, and cuts uploads into small parts. It is called before others
// use b, and returns b.
func (b *Bucket) Unpaced(pauses *[]time.Duration) *Bucket {
	b.unit = 8 << 20
	b.wait = func(ctx context.Context, d time.Duration) error {
		if pauses != nil {
			*pauses = append(*pauses, d)
		}
		return context.Cause(ctx)
	}
	return b
}

// StoreOfEnvironment returns the URL of the store that the environment names, a space, and its
// region. If the environment is wrong the test fails.
func StoreOfEnvironment(t *testing.T) string {
	e, err := readSettings()
	if err != nil {
		t.Fatal(err)
	}
	return e.String() + " " + e.region
}

// WithoutRetries has every request tried once. It is called before others use b, and returns b.
func (b *Bucket) WithoutRetries() *Bucket {
	b.tries = 1
	return b
}
