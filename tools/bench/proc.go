package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tick is the unit of /proc/PID/stat. Linux has 100 of them a second on every platform that Go runs on.
const tick = 10 * time.Millisecond

// processTime returns the CPU time of a process. With its family, also that of its children, those that have ended included.
func processTime(pid int, family bool) (time.Duration, error) {
	own, err := readStat(pid)
	if err != nil || !family {
		return own.time, err
	}
	total := own.time + own.childrenTime
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	for _, dir := range all {
		n, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		// One that has just ended is in childrenTime next time.
		if s, err := readStat(n); err == nil && s.parent == pid {
			total += s.time
		}
	}
	return total, nil
}

type stat struct {
	parent             int
	time, childrenTime time.Duration // childrenTime: of children that have ended
}

func readStat(pid int) (stat, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, fmt.Errorf("read CPU time: %w", err)
	}
	return parseStat(string(text))
}

// parseStat reads proc(5): the second field is the program's name, in parentheses, and may hold anything.
func parseStat(text string) (stat, error) {
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	numbers := map[int]int64{4: 0, 14: 0, 15: 0, 16: 0, 17: 0} // ppid, utime, stime, cutime, cstime
	for field := range numbers {
		if len(fields) < field-2 {
			return stat{}, fmt.Errorf("read CPU time: not a line of /proc/PID/stat: %.80q", text)
		}
		n, err := strconv.ParseInt(fields[field-3], 10, 64)
		if err != nil {
			return stat{}, fmt.Errorf("read CPU time: not a line of /proc/PID/stat: %.80q", text)
		}
		numbers[field] = n
	}
	return stat{
		parent: int(numbers[4]), time: time.Duration(numbers[14]+numbers[15]) * tick, childrenTime: time.Duration(numbers[16]+numbers[17]) * tick,
	}, nil
}

// ownTime is the CPU time of this process, the load generator.
func ownTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // fails for a wrong address only
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// peakMemory returns the most memory that a process had, in MiB.
func peakMemory(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read peak memory: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		var kib float64
		if n, _ := fmt.Sscanf(line, "VmHWM: %f kB", &kib); n == 1 {
			return kib / 1024, nil
		}
	}
	return 0, fmt.Errorf("read peak memory: no VmHWM in /proc/%d/status", pid)
}

// loadAverage of the machine, for whoever wonders about a figure.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 3 {
		return "unknown"
	}
	return strings.Join(fields[:3], " ")
}
