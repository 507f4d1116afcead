package format

import (
	"bytes"
	"fmt"
)

// ExplainLast reads the beginning of the file that was opened last, and says what it is, if it is
// something that often lies where a checkpoint should be: an empty file, zeros, a Git LFS pointer,
// or the error page of a server. Readers that fail ask it, because their own errors would describe
// only the symptom. It returns nil if the file can belong to a checkpoint.
func (f *Files) ExplainLast() error {
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
