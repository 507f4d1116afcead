// Package cgroup says how much memory the control groups of this process leave it (cgroup v1 and
// v2, see cgroups(7)), and how much the machine has. It reads the files of the kernel through an
// fs.FS, so that tests need none. Any goroutine may call its functions; they keep nothing.
package cgroup

import (
	"bufio"
	"bytes"
	"io/fs"
	"math"
	"path"
	"strconv"
	"strings"
)

// Memory is what one control group says about memory.
type Memory struct {
	Group string // folder with the files of the group, without a leading slash
	Limit int64  // bytes that the processes of the group may use together
	Free  int64  // bytes that the group would still give; below 0 if it is over its limit
}

// unlimited is where the kernel's word for no limit begins: version 1 says a number near 2^63.
const unlimited = math.MaxInt64 / 2

// version describes where one version of control groups keeps its numbers.
type version struct {
	limit, used string   // names of files
	cached      []string // keys of memory.stat whose sum is the memory of files that can be dropped
}

// versions has, by the type of its file system, each version of control groups. It is never
// changed.
var versions = map[string]version{
	"cgroup2": {"memory.max", "memory.current", []string{"active_file", "inactive_file"}},
	"cgroup": {"memory.limit_in_bytes", "memory.usage_in_bytes",
		[]string{"total_active_file", "total_inactive_file"}},
}

// Read reads the kernel's files and returns the memory of the group that leaves this process the
// least: its own one, or one that its own lies in. root is "/" of this machine; ok is false if no
// group sets a limit.
func Read(root fs.FS) (least Memory, ok bool) {
	return leastOf(root, func(m Memory) int64 { return m.Free })
}

// ReadLimit is Read of the group with the lowest limit, whatever others use now: more than that
// this process and those with it can never have.
func ReadLimit(root fs.FS) (least Memory, ok bool) {
	return leastOf(root, func(m Memory) int64 { return m.Limit })
}

// leastOf returns the memory of the group of which a number is least; ok is as for Read.
func leastOf(root fs.FS, number func(Memory) int64) (least Memory, ok bool) {
	mounts, err := fs.ReadFile(root, "proc/self/mountinfo")
	if err != nil {
		return Memory{}, false
	}
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return Memory{}, false
	}
	for _, m := range memoryMounts(mounts) {
		for _, folder := range m.folders(ownGroup(groups, m.kind)) {
			got, limited := versions[m.kind].readMemory(root, folder)
			if limited && (!ok || number(got) < number(least)) {
				least, ok = got, true
			}
		}
	}
	return least, ok
}

// A mount is a place where control groups that count memory are seen.
type mount struct {
	kind  string // of its file system: cgroup or cgroup2
	root  string // the group that is seen at the place
	place string // absolute path
}

// memoryMounts returns the mounts in mountinfo, whose lines are described in proc(5):
//
//	32 31 0:29 /root /place options optional… - kind source options
func memoryMounts(mountinfo []byte) (mounts []mount) {
	for in := bufio.NewScanner(bytes.NewReader(mountinfo)); in.Scan(); {
		before, after, found := strings.Cut(in.Text(), " - ")
		head, tail := strings.Fields(before), strings.Fields(after)
		if !found || len(head) < 5 || len(tail) < 3 {
			continue
		}
		memory := tail[0] == "cgroup" && hasOption(tail[2], "memory")
		if memory || tail[0] == "cgroup2" {
			mounts = append(mounts, mount{tail[0], head[3], head[4]})
		}
	}
	return mounts
}

// hasOption reports whether a list of options with commas between them has an option.
func hasOption(options, option string) bool {
	for o := range strings.SplitSeq(options, ",") {
		if o == option {
			return true
		}
	}
	return false
}

// ownGroup returns the group of this process from /proc/self/cgroup, whose lines are
// "number:controllers:/path", and "0::/path" for version 2; "" if it has none of this kind.
func ownGroup(groups []byte, kind string) string {
	for in := bufio.NewScanner(bytes.NewReader(groups)); in.Scan(); {
		parts := strings.SplitN(in.Text(), ":", 3)
		if len(parts) == 3 && (kind == "cgroup2" && parts[0] == "0" ||
			kind == "cgroup" && hasOption(parts[1], "memory")) {
			return path.Clean("/" + parts[2])
		}
	}
	return ""
}

// folders returns where the files of a group, and of those that it lies in, are seen at the mount:
// the group's own first. A container may show its group at the root of the mount while
// /proc/self/cgroup names it from the root of the host, so for a group that the mount does not
// contain the answer is the root of the mount.
func (m mount) folders(group string) (folders []string) {
	place := strings.TrimPrefix(m.place, "/")
	rest, below := strings.CutPrefix(group, strings.TrimSuffix(m.root, "/"))
	if below && strings.HasPrefix(rest, "/") {
		for ; rest != "/"; rest = path.Dir(rest) {
			folders = append(folders, place+rest)
		}
	}
	return append(folders, place)
}

// readMemory reads the memory of the group whose files are in folder; false if the group has no
// limit or a file cannot be read.
func (v version) readMemory(root fs.FS, folder string) (Memory, bool) {
	limit, ok := readNumber(root, path.Join(folder, v.limit))
	if !ok || limit >= unlimited {
		return Memory{}, false
	}
	used, ok := readNumber(root, path.Join(folder, v.used))
	if !ok {
		return Memory{}, false
	}
	stat, err := fs.ReadFile(root, path.Join(folder, "memory.stat"))
	if err != nil {
		return Memory{}, false
	}
	return Memory{Group: folder, Limit: limit, Free: limit - used + v.droppableBytes(stat)}, true
}

// readNumber reads a file that holds one number; false for any other file. Version 2 writes "max"
// where there is no limit.
func readNumber(root fs.FS, name string) (int64, bool) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}

// droppableBytes returns the sum of the bytes of cached files in a memory.stat, which the kernel
// drops when the memory is needed: reading a data set fills a group up to its limit with these.
// Shared memory is not among them, because it cannot be dropped.
func (v version) droppableBytes(stat []byte) (n int64) {
	for line := range strings.Lines(string(stat)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		for _, key := range v.cached {
			if name == key {
				bytes, _ := strconv.ParseInt(value, 10, 64) // what is no number counts as none
				n += bytes
			}
		}
	}
	return n
}
