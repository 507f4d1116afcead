// Package keyword writes names as words of the keys under which the record of a job or of a pool is
// kept, as docs/formats/record.md says.
package keyword

import (
	"fmt"
	"strings"
)

// Plain are the characters that stand for themselves in a word.
const Plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"

// Of returns any name as one word of a key: other bytes become = and two hexadecimal digits. Names
// that differ have words that differ.
func Of(name string) string {
	var b strings.Builder
	for i := range len(name) {
		if strings.IndexByte(Plain, name[i]) >= 0 {
			b.WriteByte(name[i])
		} else {
			fmt.Fprintf(&b, "=%02X", name[i])
		}
	}
	return b.String()
}
