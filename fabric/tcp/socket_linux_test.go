package tcp

import "testing"

// Where nobody reads, the kernel takes little more than the limit beyond what the other side has
// room for.
func TestSocketLimitsWhatWaits(t *testing.T) {
	const limit = 64 << 10
	taken := func(limited bool) (bytes int) {
		one, _ := socketPair(t)
		one.SetWriteBuffer(4 << 20)
		if limited {
			one.limitUnsent(limit)
		}
		for b := make([]byte, 4<<10); ; {
			n := one.writeNow(b)
			if bytes += n; n < len(b) {
				return bytes
			}
		}
	}
	if with, without := taken(true), taken(false); with+limit > without {
		t.Errorf("%d bytes were taken with the limit, and %d without", with, without)
	}
}
