package cost

import (
	"fmt"
	"math/bits"

	"github.com/shoal-ml/shoal/internal/plural"
)

// Class is a set of all-reduces that are treated alike: they go over the same number of hosts, and
// their lengths differ by less than an eighth.
type Class struct {
	Hosts int // number of hosts
	Bytes int // the least number of bytes in the class
}

// ClassOf returns the class of an all-reduce of so many bytes on each of some hosts.
func ClassOf(hosts, bytes int) Class {
	low := max(0, bits.Len(uint(bytes))-4)
	return Class{hosts, bytes >> low << low}
}

// String describes the class, such as "all-reduces of 16 MiB over 4 hosts".
func (c Class) String() string {
	return fmt.Sprintf("all-reduces of %s over %d hosts", plural.Bytes(int64(c.Bytes)), c.Hosts)
}
