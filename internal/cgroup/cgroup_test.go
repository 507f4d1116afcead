package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// A machine is the files of the kernel, by their names without a leading slash.
type machine map[string]string

// memory returns what Read says of this machine.
func (m machine) memory() (Memory, bool) {
	fsys := fstest.MapFS{}
	for name, text := range m {
		fsys[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return Read(fsys)
}

// withGroup adds the files of a group to m, and returns m. kind is a key of versions; limit, used
// and stat are what its files hold.
func (m machine) withGroup(kind, folder, limit, used, stat string) machine {
	v := versions[kind]
	m[folder+"/"+v.limit], m[folder+"/"+v.used], m[folder+"/memory.stat"] = limit, used, stat
	return m
}

const (
	mounts2 = "30 20 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	mounts1 = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n" +
		"32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n" +
		"35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
		"41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
	groups1 = "4:memory:/user/me\n1:cpu:/\n0::/\n"
)

// TestRead checks which of several groups is the tightest, in both versions.
func TestRead(t *testing.T) {
	// v2 and v1 return a machine with control groups of that version, and none with a limit.
	v2 := func() machine {
		return machine{"proc/self/mountinfo": mounts2, "proc/self/cgroup": "0::/user/me\n"}
	}
	v1 := func() machine {
		return machine{"proc/self/mountinfo": mounts1, "proc/self/cgroup": groups1}
	}
	const none1 = "9223372036854771712\n"
	for name, c := range map[string]struct {
		machine machine
		want    Memory
		ok      bool
	}{
		"no files": {machine{}, Memory{}, false},
		"version 2, no limit": {
			v2().withGroup("cgroup2", "sys/fs/cgroup/user/me", "max\n", "10\n", ""),
			Memory{}, false},
		"version 2, own group": {
			v2().withGroup("cgroup2", "sys/fs/cgroup/user/me", "1000\n", "400\n",
				"anon 1\nfile 90\nshmem 40\ninactive_file 30\nactive_file 20\nactive_file_x 9\n"),
			Memory{"sys/fs/cgroup/user/me", 1000, 650}, true},
		"version 2, the group above leaves less": {v2().
			withGroup("cgroup2", "sys/fs/cgroup/user/me", "1000\n", "400\n", "").
			withGroup("cgroup2", "sys/fs/cgroup/user", "800\n", "700\n", ""),
			Memory{"sys/fs/cgroup/user", 800, 100}, true},
		"version 1, own group": {v1().withGroup("cgroup", "sys/fs/cgroup/memory/user/me", "1000\n",
			"400\n", "inactive_file 1\ntotal_inactive_file 30\ntotal_active_file 20\n"),
			Memory{"sys/fs/cgroup/memory/user/me", 1000, 650}, true},
		"version 1, the root alone": {v1().
			withGroup("cgroup", "sys/fs/cgroup/memory/user/me", none1, "4\n", "").
			withGroup("cgroup", "sys/fs/cgroup/memory", "500\n", "100\n", ""),
			Memory{"sys/fs/cgroup/memory", 500, 400}, true},
		"version 1, not of memory": {
			v1().withGroup("cgroup", "sys/fs/cgroup/cpu", "500\n", "100\n", ""),
			Memory{}, false},
		"over the limit": {v2().withGroup("cgroup2", "sys/fs/cgroup/user/me", "100\n", "130\n", ""),
			Memory{"sys/fs/cgroup/user/me", 100, -30}, true},
		"a container that shows its group at the root": {machine{
			"proc/self/mountinfo": "35 31 0:32 /docker/x /sys/fs/cgroup/memory rw - cgroup c " +
				"memory\n",
			"proc/self/cgroup": "4:memory:/docker/x\n"}.
			withGroup("cgroup", "sys/fs/cgroup/memory", "900\n", "100\n", ""),
			Memory{"sys/fs/cgroup/memory", 900, 800}, true},
		"a container that names its group from elsewhere": {machine{
			"proc/self/mountinfo": "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup c memory\n",
			"proc/self/cgroup":    "4:memory:/docker/x\n"}.
			withGroup("cgroup", "sys/fs/cgroup/memory", "900\n", "100\n", ""),
			Memory{"sys/fs/cgroup/memory", 900, 800}, true},
		"nonsense": {machine{"proc/self/mountinfo": "x\n- -\n1 2 3 4 5 - cgroup2\n",
			"proc/self/cgroup": "0\n::\n"}, Memory{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := c.machine.memory()
			if diff := cmp.Diff(c.want, got); diff != "" || ok != c.ok {
				t.Errorf("limited: %v, want %v (-want +got):\n%s", ok, c.ok, diff)
			}
		})
	}
}

// What the kernel of this machine says can be read: a group made here has the limit that it was
// given.
func TestReadThisMachine(t *testing.T) {
	const folder, limit = "/sys/fs/cgroup/memory", 1 << 30
	group := filepath.Join(folder, fmt.Sprintf("shoal-test-%d", os.Getpid()))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skip("control groups of version 1 cannot be made here: ", err)
	}
	t.Cleanup(func() { os.Remove(group) })
	file := filepath.Join(group, "memory.limit_in_bytes")
	if err := os.WriteFile(file, fmt.Append(nil, limit), 0o644); err != nil {
		t.Fatal(err)
	}
	got, ok := versions["cgroup"].readMemory(os.DirFS("/"), strings.TrimPrefix(group, "/"))
	if !ok || got.Limit != limit || got.Free < limit/2 || got.Free > limit {
		t.Errorf("got %+v, %v, want a limit of %d bytes, nearly all of them free", got, ok, limit)
	}
}
