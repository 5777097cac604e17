// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// scores.c in C++17, with the same commands and payloads. The author used only docs/use/programs.md, the man pages and
// the header. The server stores rows instead of the watermark, and the client waits for each update.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

#include <pmnet.h>

namespace {

struct Failure : std::runtime_error {
	using std::runtime_error::runtime_error;
};

int check(const char *what, int code)
{
	if (code < 0)
		throw Failure(std::string(what) + ": " + pmnet_error_text(code) + ": " + pmnet_last_error());
	return code;
}

using Map = std::map<std::string, std::string>;

// The scores and the rows, in one file.
class Store {
public:
	Map scores, rows;

	explicit Store(std::filesystem::path place) : path(std::move(place))
	{
		std::ifstream file(path, std::ios::binary);

		if (!file)
			return;
		for (Map *map : { &scores, &rows }) {
			auto count = std::stoul(read(file));

			while (count-- > 0) {
				auto key = read(file);

				(*map)[key] = read(file);
			}
		}
	}

	// The transaction: a new durable file replaces the old file.
	void commit() const
	{
		std::ostringstream text;

		for (const Map *map : { &scores, &rows }) {
			write(text, std::to_string(map->size()));
			for (const auto &[key, value] : *map) {
				write(text, key);
				write(text, value);
			}
		}
		auto other = path;
		other += ".new";
		durable(other, O_WRONLY | O_CREAT | O_TRUNC, text.str());
		std::filesystem::rename(other, path);
		durable(path.parent_path(), O_RDONLY | O_DIRECTORY, "");
	}

private:
	std::filesystem::path path;

	static void durable(const std::filesystem::path &place, int flags, std::string_view bytes)
	{
		int fd = ::open(place.c_str(), flags, 0600);

		if (fd < 0 || (!bytes.empty() && ::write(fd, bytes.data(), bytes.size()) != ssize_t(bytes.size())) ||
		    ::fsync(fd) || ::close(fd))
			throw Failure("cannot store " + place.string());
	}

	static void write(std::ostream &to, const std::string &text)
	{
		to << text.size() << ' ' << text;
	}

	static std::string read(std::istream &from)
	{
		std::size_t size;

		if (!(from >> size) || from.get() != ' ')
			throw Failure("the store is damaged");
		std::string text(size, 0);
		from.read(text.data(), std::streamsize(size));
		return text;
	}
};

std::string execute(Store &store, const pmnet_item &item)
{
	std::istringstream words(std::string(static_cast<const char *>(item.payload), item.len));
	std::string what, name;

	words >> what >> name;
	auto found = store.scores.find(name);
	auto before = found == store.scores.end() ? "0" : found->second;
	if (item.kind == PMNET_UPDATE)
		store.scores[name] = std::to_string(std::stoll(before) + std::atoll(what.c_str()));
	else if (item.kind == PMNET_BYPASS && what == "take")
		store.scores[name] = "0";
	return before;
}

void serve(const char *address, const char *path)
{
	Store store(std::filesystem::absolute(path));
	std::vector<pmnet_row> rows;
	pmnet_server_options options{};
	pmnet_server server;
	pmnet_batch batch;

	for (const auto &[key, value] : store.rows)
		rows.push_back({ key.data(), key.size(), value.data(), value.size() });
	options.size = sizeof(options);
	options.listen = address;
	options.rows = rows.data();
	options.rows_count = rows.size();
	check("open", pmnet_server_open(&options, &server));
	std::cout << "ready" << std::endl;
	for (;;) {
		if (check("next", pmnet_server_next(server, -1, &batch)) == PMNET_AGAIN)
			continue;
		for (std::size_t at = 0; at < batch.count; at++) {
			auto reply = execute(store, batch.items[at]);

			if (batch.items[at].kind != PMNET_UPDATE)
				check("reply", pmnet_server_reply(server, at, reply.data(), reply.size()));
		}
		const pmnet_row *changed;
		std::size_t count;
		check("rows", pmnet_server_rows(server, &changed, &count));
		for (std::size_t at = 0; at < count; at++) {
			std::string key(static_cast<const char *>(changed[at].key), changed[at].key_len);

			if (changed[at].value)
				store.rows[key].assign(static_cast<const char *>(changed[at].value), changed[at].value_len);
			else
				store.rows.erase(key);
		}
		store.commit();
		check("done", pmnet_server_done(server, batch.number));
	}
}

class Client {
public:
	explicit Client(const char *device)
	{
		pmnet_client_options options{};

		options.size = sizeof(options);
		options.devices = device;
		options.timeout_ms = 30000;
		check("open", pmnet_client_open(&options, &handle));
	}
	Client(const Client &) = delete;
	Client &operator=(const Client &) = delete;
	~Client()
	{
		pmnet_client_close(handle);
	}

	void update(const std::string &name, const std::string &text)
	{
		check("update", pmnet_update(handle, hash(name), text.data(), text.size()));
	}

	std::string bypass(const std::string &name, std::uint32_t flags, const std::string &text)
	{
		pmnet_bytes bytes;

		check("bypass", pmnet_bypass(handle, hash(name), flags, text.data(), text.size(), &bytes));
		std::string reply(reinterpret_cast<const char *>(bytes.data), bytes.len);
		pmnet_bytes_free(&bytes);
		return reply;
	}

private:
	pmnet_client handle;

	static std::uint64_t hash(const std::string &name)
	{
		return pmnet_key_hash(name.data(), name.size());
	}
};

int run(const std::vector<std::string> &words)
{
	if (words.size() == 3 && words[0] == "serve")
		serve(words[1].c_str(), words[2].c_str());
	if (words.size() == 5 && words[0] == "add") {
		Client client(words[1].c_str());
		long done = 0;

		for (; done < std::stol(words[4]); done++)
			client.update(words[2], "+" + words[3] + " " + words[2]);
		std::cout << done << std::endl;
		return 0;
	}
	if (words.size() == 3 && (words[0] == "get" || words[0] == "take")) {
		Client client(words[1].c_str());
		std::uint32_t flags = words[0] == "get" ? PMNET_READ_ONLY : 0;

		std::cout << client.bypass(words[2], flags, words[0] + " " + words[2]) << std::endl;
		return 0;
	}
	std::cerr << "usage: the head of scores.c\n";
	return 2;
}

} // namespace

int main(int argc, char **argv)
{
	try {
		return run(std::vector<std::string>(argv + 1, argv + argc));
	} catch (const std::exception &error) {
		std::cerr << error.what() << std::endl;
		return 1;
	}
}
