package format

import (
	"bytes"
	"fmt"
)

// Stranger says what the file that was opened last is, if that is none of a checkpoint but what
// often lies in its place: nothing at all, zeros, what Git has for a file that it keeps elsewhere,
// or the page of a server that had no such file or wanted to know who asks. Readers that fail ask
// it, for they would say only what about it is wrong. nil where it can be a file of a checkpoint.
func (f *Files) Stranger() error {
	file := f.open[f.last]
	if file == nil {
		return nil
	}
	if file.Size == 0 {
		return fmt.Errorf(
			"%s is empty: it was not written to its end, or not copied; copy it again", file.Name)
	}
	head := make([]byte, min(file.Size, 200))
	if file.ReadFull(head, 0) != nil {
		return nil
	}
	if len(head) >= 8 && len(bytes.Trim(head, "\x00")) == 0 {
		return fmt.Errorf("%s begins with zeros: it was not written to its end; copy it again, "+
			"or run again what writes it", file.Name)
	}
	if bytes.HasPrefix(head, []byte("version https://git-lfs.github.com/spec/")) {
		return fmt.Errorf(
			"%s is a Git LFS pointer, not the file: run git lfs pull where it was cloned",
			file.Name)
	}
	head = bytes.ToLower(bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\ufeff")), " \t\r\n"))
	for _, start := range []string{"<!doctype", "<html", "<?xml"} {
		if bytes.HasPrefix(head, []byte(start)) {
			return fmt.Errorf("%s is a page of a server, not the file, which was not found "+
				"there or is for some to read only: open it to see, and download the file again",
				file.Name)
		}
	}
	return nil
}
